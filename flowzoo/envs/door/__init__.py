"""The door: a server on the loopback interface that agent programs ask by an OpenAI client."""
