"""Parts of `benchmarks/powercut.py`: devices that lose their power in the middle of installs."""
