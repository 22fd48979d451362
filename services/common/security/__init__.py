"""TLS identities with rotating certificates, and access policies by the role in a certificate."""
