"""Studies made with flowzoo: scripts whose tables and pages are in the documentation."""
