import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.UUID;

import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.StringSerializer;

/**
 * Creates topics of one partition, and produces as clients of newer brokers do.
 *
 * Lines of input: the addresses of the brokers, then commands, with spaces between their words: "create TOPIC
 * SETTING=VALUE...", "commit TOPIC VALUE..." and "abort TOPIC VALUE..." for a transaction, "send TOPIC CODEC SIZE"
 * for one record without a transaction, and "date TOPIC SECONDS..." for records of that many seconds ago. Each is
 * answered by a line.
 */
public class ModernProducer {
    public static void main(String[] arguments) throws Exception {
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        Properties settings = new Properties();
        settings.put("bootstrap.servers", lines.readLine());
        for (String line; (line = lines.readLine()) != null;) {
            String[] words = line.split(" ");
            if (words[0].equals("create")) {
                create(settings, words);
            } else if (words[0].equals("send")) {
                send(settings, words[1], words[2], Integer.parseInt(words[3]));
            } else if (words[0].equals("date")) {
                date(settings, words);
            } else {
                transact(settings, words);
            }
            System.out.println("done");
        }
    }

    private static void create(Properties settings, String[] words) throws Exception {
        Map<String, String> config = new HashMap<>();
        for (int n = 2; n < words.length; n++) {
            config.put(words[n].split("=")[0], words[n].split("=")[1]);
        }
        try (Admin admin = Admin.create(settings)) {
            NewTopic topic = new NewTopic(words[1], 1, (short) 1).configs(config);
            admin.createTopics(List.of(topic)).all().get();
        }
    }

    private static void send(Properties settings, String topic, String codec, int size) throws Exception {
        Map<String, Object> more = Map.of("compression.type", codec, "max.request.size", 1 << 30);
        try (KafkaProducer<String, String> producer = producer(settings, more)) {
            producer.send(new ProducerRecord<>(topic, 0, null, "x".repeat(size))).get();
        }
    }

    private static void date(Properties settings, String[] words) throws Exception {
        long now = System.currentTimeMillis();
        try (KafkaProducer<String, String> producer = producer(settings, Map.of())) {
            for (int n = 2; n < words.length; n++) {
                long time = now - 1000 * Long.parseLong(words[n]);
                producer.send(new ProducerRecord<>(words[1], 0, time, null, words[n])).get();
            }
        }
    }

    private static void transact(Properties settings, String[] words) throws Exception {
        Map<String, Object> more = Map.of("transactional.id", UUID.randomUUID().toString());
        try (KafkaProducer<String, String> producer = producer(settings, more)) {
            producer.initTransactions();
            producer.beginTransaction();
            for (int n = 2; n < words.length; n++) {
                producer.send(new ProducerRecord<>(words[1], 0, null, words[n]));
            }
            producer.flush();
            if (words[0].equals("commit")) {
                producer.commitTransaction();
            } else {
                producer.abortTransaction();
            }
        }
    }

    private static KafkaProducer<String, String> producer(Properties settings, Map<String, Object> more) {
        Properties all = new Properties();
        all.putAll(settings);
        all.putAll(more);
        return new KafkaProducer<>(all, new StringSerializer(), new StringSerializer());
    }
}
