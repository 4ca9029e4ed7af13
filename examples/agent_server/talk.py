"""Talks to the example's server, as a client anywhere would: python talk.py "I like green tea"."""

import asyncio
import sys

from langgraph_sdk import get_client

URL = "http://127.0.0.1:2024"


async def talk(texts: list[str]) -> None:
    """Send texts in turn, and print the answers."""
    client = get_client(url=URL)
    for text in texts:
        state = await client.runs.wait(None, "agent", input={"user": "alice", "text": text})
        print(state["answer"])
    found = await client.store.search_items(["users", "alice"], limit=100)
    print(f"{len(found['items'])} memories of alice")


if __name__ == "__main__":
    asyncio.run(talk(sys.argv[1:] or ["I live in Lisbon", "I like green tea", "Which tea do I like?"]))
