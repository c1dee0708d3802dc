"""Kafka: events out of a topic, releases into a topic, releases read back."""
