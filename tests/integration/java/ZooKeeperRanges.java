import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;

import kafka.consumer.AssignmentContext;
import kafka.consumer.RangeAssignor;
import kafka.utils.ZKStringSerializer$;
import org.I0Itec.zkclient.InMemoryConnection;
import org.I0Itec.zkclient.ZkClient;
import scala.collection.JavaConversions;

/**
 * Runs the range assignor of Kafka 0.8.2 for the groups on standard input, with znodes in memory.
 *
 * Lines of input, with tabs between their fields: "topic NAME PARTITIONS", "member ID TOPIC,...", and "end" after each
 * group. Lines of output: "range ID TOPIC:PARTITION,..." for each member, and "end". Each member has one thread, and
 * computes its own partitions, as consumers of 0.8 do.
 */
public class ZooKeeperRanges {
    public static void main(String[] arguments) throws Exception {
        PrintStream out = new PrintStream(System.out, false, StandardCharsets.UTF_8);
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        ZkClient client = newClient();
        List<String> members = new ArrayList<>();
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            String[] fields = line.split("\t", -1);
            if (fields[0].equals("topic")) {
                client.createPersistent("/brokers/topics/" + fields[1], topic(Integer.parseInt(fields[2])));
            } else if (fields[0].equals("member")) {
                client.createPersistent("/consumers/g/ids/" + fields[1], subscription(fields[2]));
                members.add(fields[1]);
            } else {
                for (String member : members)
                    out.println("range\t" + member + "\t" + owned(client, member));
                out.println("end");
                client.close();
                client = newClient();
                members.clear();
            }
        }
        client.close();
        out.flush();
    }

    private static ZkClient newClient() {
        ZkClient client = new ZkClient(new InMemoryConnection(), 10_000, ZKStringSerializer$.MODULE$);
        client.createPersistent("/brokers/ids", true);
        client.createPersistent("/brokers/topics", true);
        client.createPersistent("/consumers/g/ids", true);
        return client;
    }

    private static String topic(int partitions) {
        List<String> replicas = new ArrayList<>();
        for (int number = partitions - 1; number >= 0; number--)
            replicas.add("\"" + number + "\":[1]");
        return "{\"version\":1,\"partitions\":{" + String.join(",", replicas) + "}}";
    }

    private static String subscription(String topics) {
        List<String> threads = new ArrayList<>();
        for (String topic : topics.isEmpty() ? new String[0] : topics.split(","))
            threads.add("\"" + topic + "\":1");
        return "{\"version\":1,\"subscription\":{" + String.join(",", threads)
            + "},\"pattern\":\"static\",\"timestamp\":\"1\"}";
    }

    private static String owned(ZkClient client, String member) {
        AssignmentContext context = new AssignmentContext("g", member, false, client);
        List<String> owned = new ArrayList<>();
        JavaConversions.mapAsJavaMap(new RangeAssignor().assign(context)).forEach((partition, thread) -> {
            if (!thread.toString().equals(member + "-0"))
                throw new IllegalStateException(member + " decided for " + thread);
            owned.add(partition.topic() + ":" + partition.partition());
        });
        return String.join(",", owned);
    }
}
