"""What serving is measured with: models, servers, clients."""
