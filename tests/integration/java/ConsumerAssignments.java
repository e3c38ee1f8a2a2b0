import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.lang.reflect.Constructor;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collection;
import java.util.Collections;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;

import org.apache.kafka.clients.consumer.RangeAssignor;
import org.apache.kafka.clients.consumer.RoundRobinAssignor;
import org.apache.kafka.common.Cluster;
import org.apache.kafka.common.Node;
import org.apache.kafka.common.PartitionInfo;
import org.apache.kafka.common.TopicPartition;

/**
 * Runs the assignors of kafka-clients for the groups on standard input.
 *
 * Lines of input, with tabs between their fields: "topic NAME PARTITIONS", "member ID TOPIC,...", and "end" after each
 * group. Lines of output: "range ID TOPIC:PARTITION,..." and "roundrobin ID ..." for each member, and "end". For an
 * assignor that raises an error, there is one line instead: "raised ASSIGNOR ERROR".
 *
 * Releases differ in the package of the interface and in the arguments of constructors, so these are looked up.
 */
public class ConsumerAssignments {
    private static final PrintStream OUT = new PrintStream(System.out, false, StandardCharsets.UTF_8);
    private static final Node NODE = new Node(1, "broker", 9092);

    public static void main(String[] arguments) throws Exception {
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        List<PartitionInfo> partitions = new ArrayList<>();
        Map<String, Object> subscriptions = new TreeMap<>();
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            String[] fields = line.split("\t", -1);
            if (fields[0].equals("topic")) {
                for (int number = 0; number < Integer.parseInt(fields[2]); number++)
                    partitions.add(new PartitionInfo(fields[1], number, NODE, new Node[0], new Node[0]));
            } else if (fields[0].equals("member")) {
                List<String> topics = fields[2].isEmpty() ? List.of() : Arrays.asList(fields[2].split(","));
                subscriptions.put(fields[1], nested("Subscription").getConstructor(List.class).newInstance(topics));
            } else {
                print("range", new RangeAssignor(), cluster(partitions), subscriptions);
                print("roundrobin", new RoundRobinAssignor(), cluster(partitions), subscriptions);
                OUT.println("end");
                partitions.clear();
                subscriptions.clear();
            }
        }
        OUT.flush();
    }

    private static Cluster cluster(List<PartitionInfo> partitions) throws Exception {
        for (Constructor<?> constructor : Cluster.class.getConstructors()) {
            Class<?>[] types = constructor.getParameterTypes();
            if (types.length == 3 && types[0] == Collection.class)
                return (Cluster) constructor.newInstance(List.of(NODE), partitions, Collections.emptySet());
            if (types.length == 5 && types[4] == Set.class)
                return (Cluster) constructor.newInstance(
                    null, List.of(NODE), partitions, Collections.emptySet(), Collections.emptySet());
        }
        throw new IllegalStateException("no known constructor of Cluster");
    }

    private static Map<?, ?> assign(Object assignor, Cluster cluster, Map<String, Object> subscriptions)
        throws Exception {
        for (Method method : assignor.getClass().getMethods()) {
            Class<?>[] types = method.getParameterTypes();
            if (!method.getName().equals("assign") || types[0] != Cluster.class)
                continue;
            if (types[1] == Map.class)
                return (Map<?, ?>) method.invoke(assignor, cluster, subscriptions);
            Object group = types[1].getConstructor(Map.class).newInstance(subscriptions);
            Object assignment = method.invoke(assignor, cluster, group);
            return (Map<?, ?>) assignment.getClass().getMethod("groupAssignment").invoke(assignment);
        }
        throw new IllegalStateException("no known method assign");
    }

    private static Class<?> nested(String name) throws ClassNotFoundException {
        try {
            return Class.forName("org.apache.kafka.clients.consumer.ConsumerPartitionAssignor$" + name);
        } catch (ClassNotFoundException older) {
            return Class.forName("org.apache.kafka.clients.consumer.internals.PartitionAssignor$" + name);
        }
    }

    private static void print(String name, Object assignor, Cluster cluster, Map<String, Object> subscriptions)
        throws Exception {
        Map<?, ?> assignments;
        try {
            assignments = assign(assignor, cluster, subscriptions);
        } catch (InvocationTargetException failure) {
            OUT.println("raised\t" + name + "\t" + failure.getCause().getClass().getSimpleName());
            return;
        }
        for (Map.Entry<?, ?> entry : assignments.entrySet()) {
            Object owned = entry.getValue().getClass().getMethod("partitions").invoke(entry.getValue());
            List<String> texts = new ArrayList<>();
            for (Object each : (List<?>) owned)
                texts.add(((TopicPartition) each).topic() + ":" + ((TopicPartition) each).partition());
            OUT.println(name + "\t" + entry.getKey() + "\t" + String.join(",", texts));
        }
    }
}
