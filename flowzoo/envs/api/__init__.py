"""PettingZoo and Gymnasium interfaces of workflows, their spaces, and the registry."""
