"""A job: several ranks that train together and are checkpointed as one, by cuts that all of them have."""
