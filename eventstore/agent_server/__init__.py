"""Store, cache and node cache inside of LangGraph's Agent Server; see ``docs/agent-server.md``."""

from eventstore.agent_server.caching import install_cache, node_cache
from eventstore.agent_server.factory import store

__all__ = ["install_cache", "node_cache", "store"]
