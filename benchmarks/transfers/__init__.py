"""What the benchmark of transfers is made of: the rig, the devices, the links, the peers."""
