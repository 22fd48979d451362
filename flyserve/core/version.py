"""The version that every process reports."""

VERSION = "0.1.0"
