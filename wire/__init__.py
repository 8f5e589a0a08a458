"""What crosses the network or lies inside a package, and the code that makes and checks it."""
