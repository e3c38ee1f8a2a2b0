"""ZooKeeper: the only room that imports kazoo, and the bridge from its threads to the event loop."""
