"""The Hermes terminal and file tools, natively async on a sandbox."""
