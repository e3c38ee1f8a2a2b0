"""
Serve the state of groups to operators over HTTP: pages, JSON, events, metrics, and the requests of Burrow.

One thread for each cluster observes its groups, and passes their state to the event loop. Requests are answered from
the newest state, so they cause no load on ZooKeeper and the brokers, except for plans and the requests of ``actions``.
Requests about connectors are forwarded to a worker.
"""
