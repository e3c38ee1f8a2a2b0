import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;

import kafka.consumer.Consumer;
import kafka.consumer.ConsumerConfig;
import kafka.javaapi.consumer.ConsumerConnector;

/**
 * Runs members with Kafka 0.8's own high-level consumer, with its defaults, until standard input ends; then they leave.
 *
 * Arguments: ZooKeeper, group, topics with commas between them, the number of members, session timeout in ms.
 */
public class HighLevelConsumer {
    public static void main(String[] given) throws Exception {
        List<ConsumerConnector> connectors = new ArrayList<>();
        for (int number = 0; number < Integer.parseInt(given[3]); number++) {
            Properties properties = new Properties();
            properties.put("zookeeper.connect", given[0]);
            properties.put("group.id", given[1]);
            properties.put("zookeeper.session.timeout.ms", given[4]);
            properties.put("auto.offset.reset", "smallest");
            ConsumerConnector connector = Consumer.createJavaConsumerConnector(new ConsumerConfig(properties));
            Map<String, Integer> streams = new HashMap<>();
            for (String topic : given[2].split(",")) {
                streams.put(topic, 1);
            }
            connector.createMessageStreams(streams);
            connectors.add(connector);
        }
        while (System.in.read() >= 0) {
        }
        for (ConsumerConnector connector : connectors) {
            connector.shutdown();
        }
        System.exit(0);
    }
}
