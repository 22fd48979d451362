"""Calibration: record the evidence of prompts once, replay rules on it, and find the best one."""
