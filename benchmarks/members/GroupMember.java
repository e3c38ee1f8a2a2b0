import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collection;
import java.util.List;
import java.util.Properties;

import org.apache.kafka.clients.consumer.ConsumerRebalanceListener;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.WakeupException;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

/**
 * Runs members with Java's KafkaConsumer, from 0.9 on.
 *
 * They join at a line of input, and leave at its end. Arguments: broker, group, topics with commas between them, the number of members, and further settings of the
 * consumer, each as NAME=VALUE; range and roundrobin name the assignors of these names. The lines of output are those
 * of event_lines.py. Each member has a thread.
 */
public class GroupMember implements ConsumerRebalanceListener, Runnable {
    /** How long a poll waits for records, in milliseconds. The end of the input interrupts it. */
    private static final long POLL_MS = 100;
    private static volatile boolean over = false;

    private final int number;
    private final List<String> topics;
    private final KafkaConsumer<byte[], byte[]> consumer;

    private GroupMember(int number, List<String> topics, Properties properties) {
        this.number = number;
        this.topics = topics;
        this.consumer = new KafkaConsumer<>(properties, new ByteArrayDeserializer(), new ByteArrayDeserializer());
    }

    public static void main(String[] given) throws Exception {
        Properties properties = new Properties();
        properties.put("bootstrap.servers", given[0]);
        properties.put("group.id", given[1]);
        properties.put("auto.offset.reset", "earliest");
        for (String setting : Arrays.copyOfRange(given, 4, given.length)) {
            String[] words = setting.split("=", 2);
            properties.put(words[0], words[0].equals("partition.assignment.strategy") ? classes(words[1]) : words[1]);
        }
        List<GroupMember> members = new ArrayList<>();
        List<Thread> threads = new ArrayList<>();
        for (int number = 0; number < Integer.parseInt(given[3]); number++) {
            GroupMember member = new GroupMember(number, Arrays.asList(given[2].split(",")), properties);
            members.add(member);
            threads.add(new Thread(member));
        }
        for (GroupMember member : members)
            member.report("prepared", new ArrayList<>());
        int typed = System.in.read();
        for (Thread thread : threads)
            thread.start();
        while (typed >= 0)
            typed = System.in.read();
        over = true;
        for (GroupMember member : members)
            member.consumer.wakeup();
        for (Thread thread : threads)
            thread.join();
        System.exit(0);
    }

    private static String classes(String names) {
        String prefix = "org.apache.kafka.clients.consumer.";
        return names.replace("roundrobin", prefix + "RoundRobinAssignor").replace("range", prefix + "RangeAssignor");
    }

    @Override
    public void run() {
        try {
            report("joining", new ArrayList<>());
            consumer.subscribe(topics, this);
            while (!over)
                poll();
            report("leaving", new ArrayList<>());
            consumer.close();
            report("left", new ArrayList<>());
        } catch (Exception error) {
            report("failed", Arrays.asList(error.getClass().getSimpleName(), error.getMessage()));
            System.exit(1);
        }
    }

    /** Polls once. The method poll(long) is the one that all releases up to 3.9 have. */
    @SuppressWarnings("deprecation")
    private void poll() {
        try {
            for (ConsumerRecord<byte[], byte[]> record : consumer.poll(POLL_MS))
                report("record", Arrays.asList(record.topic() + ":" + record.partition(), "" + record.offset()));
        } catch (WakeupException closing) {
            // Only the end of standard input wakes the consumer.
        }
    }

    @Override
    public void onPartitionsAssigned(Collection<TopicPartition> partitions) {
        report("assigned", words(partitions));
    }

    @Override
    public void onPartitionsRevoked(Collection<TopicPartition> partitions) {
        report("revoked", words(partitions));
    }

    private static List<String> words(Collection<TopicPartition> partitions) {
        List<String> words = new ArrayList<>();
        for (TopicPartition partition : partitions)
            words.add(partition.topic() + ":" + partition.partition());
        return words;
    }

    private void report(String kind, List<String> words) {
        synchronized (System.out) {
            System.out.println((System.nanoTime() + " " + number + " " + kind + " " + String.join(" ", words)).trim());
            System.out.flush();
        }
    }
}
