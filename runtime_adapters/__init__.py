"""One small protocol over unlike inference runtimes, each imported on first use."""
