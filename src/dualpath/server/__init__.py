"""The OpenAI-compatible HTTP API in front of a cluster; knows the control client, no engine and no model."""
