"""A model becomes variants, each proven, in one signed package. Never on a device."""
