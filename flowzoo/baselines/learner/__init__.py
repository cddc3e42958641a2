"""The learner of one policy; `update.Learner` is the way in."""
