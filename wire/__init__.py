"""The data that crosses the network or is in a package, and the code that makes and checks it."""
