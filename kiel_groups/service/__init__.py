"""
Serve groups over HTTP to operators: JSON, events, metrics, and the requests of Burrow.

One thread for each cluster observes its groups, and passes whole states of them to the event loop, which answers
requests from the newest state. So a request costs ZooKeeper and the brokers nothing.
"""
