"""
Decide for one member of a group that brokers coordinate: when it joins, syncs, beats, gives partitions back, leaves.

The driver in ``clients.coordinator`` feeds in the answers of brokers and performs the effects; the simulator does, too.
It never decides which member gets which partition: assignors do, which the member that leads runs.
"""
