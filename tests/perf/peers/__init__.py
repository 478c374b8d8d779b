"""Programs that drive other engines' Docker sandboxes, each with its own interpreter."""
