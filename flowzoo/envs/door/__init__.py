"""The door: a loopback server that agent programs call with an OpenAI client."""
