"""
Encode the requests and decode the answers by which brokers coordinate groups, and the members' "consumer" protocol.

Clients whose group is coordinated by brokers use it: to find the coordinator, to join and leave, to commit, to inspect.
These modules do not decide what a member does next, and do not interpret error codes: ``wire.error_codes`` describes
them. The versions of the requests are those that brokers of 0.9 and of 3.9 both take, besides what 0.8.2 needs.
"""
