"""The asyncio client for BlazingMQ, in pure Python."""
