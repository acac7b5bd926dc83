"""The routes of the REST API, one file a subject."""
