"""Who may speak to whom: certificates that can be rotated, and the roles that they name."""
