"""Lone agents with the tools, turns and information of a team, and the teams they are beside."""
