"""How a package comes onto the device and into service, safely."""
