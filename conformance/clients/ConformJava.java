// SPDX-License-Identifier: Apache-2.0

import com.bloomberg.bmq.AckMessage;
import com.bloomberg.bmq.MessageProperties;
import com.bloomberg.bmq.MessageProperty;
import com.bloomberg.bmq.PushMessage;
import com.bloomberg.bmq.PutMessage;
import com.bloomberg.bmq.Queue;
import com.bloomberg.bmq.QueueFlags;
import com.bloomberg.bmq.QueueOptions;
import com.bloomberg.bmq.Session;
import com.bloomberg.bmq.SessionOptions;
import com.bloomberg.bmq.Uri;
import com.google.gson.Gson;
import com.google.gson.JsonElement;
import com.google.gson.JsonObject;
import com.google.gson.JsonParser;
import com.google.gson.JsonPrimitive;
import java.io.BufferedReader;
import java.io.ByteArrayOutputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.net.URI;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayDeque;
import java.util.Base64;
import java.util.HashMap;
import java.util.Iterator;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;

/**
 * The Java SDK as the client under test of {@code python -m conformance client}.
 *
 * <p>With the SDK's jar and the jars that it needs (netty, gson, slf4j, commons-codec, jsr305) in the folder jars:
 *
 * <pre>
 * javac -d build -cp 'jars/*' conformance/clients/ConformJava.java
 * python -m conformance client -- java -cp 'build:jars/*' ConformJava
 * </pre>
 */
public final class ConformJava {
    private static final Duration TIMEOUT = Duration.ofSeconds(8);

    private final PrintStream out = new PrintStream(System.out, true, StandardCharsets.UTF_8);
    private final Gson gson = new Gson();
    /** Calls that wait for the broker do not keep the commands after them waiting. */
    private final ExecutorService calls = Executors.newCachedThreadPool();
    private final Map<String, Queue> queues = new ConcurrentHashMap<>();
    private final Map<String, PushMessage> received = new ConcurrentHashMap<>();
    private final Map<String, ArrayDeque<JsonObject>> arrived = new HashMap<>();
    private final Map<String, ArrayDeque<Integer>> wanted = new HashMap<>();
    private final String uri;
    private Session session;

    private ConformJava(String uri) {
        this.uri = uri;
    }

    public static void main(String[] arguments) throws Exception {
        ConformJava harness = new ConformJava(System.getenv("BMQ_BROKER_URI"));
        BufferedReader commands =
                new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = commands.readLine(); line != null; line = commands.readLine()) {
            harness.take(JsonParser.parseString(line).getAsJsonObject());
        }
        Runtime.getRuntime().halt(0); // a session without a broker does not stop
    }

    private interface Call {
        JsonObject run() throws Exception;
    }

    private void take(JsonObject command) {
        int id = command.get("id").getAsInt();
        String verb = command.get("do").getAsString();
        switch (verb) {
            case "hello" -> answer(id, () -> named("name", "bmq-sdk-java"));
            case "start" -> calls.execute(() -> answer(id, this::start));
            case "open" -> calls.execute(() -> answer(id, () -> open(command)));
            case "post" -> post(id, command); // in this thread: messages keep their order
            case "receive" -> receive(id, text(command, "queue"));
            case "confirm" -> answer(id, () -> confirm(text(command, "guid")));
            case "close" -> calls.execute(() -> answer(id, () -> close(text(command, "queue"))));
            case "stop" -> calls.execute(() -> answer(id, this::stop));
            default -> {
                JsonObject answer = named("error", "the harness does not know " + verb);
                answer.addProperty("unsupported", true);
                write(id, false, answer);
            }
        }
    }

    private JsonObject start() {
        SessionOptions options =
                SessionOptions.builder().setBrokerUri(URI.create(uri)).setStartTimeout(TIMEOUT).build();
        session = new Session(options, event -> {});
        session.start(TIMEOUT);
        return new JsonObject();
    }

    private JsonObject open(JsonObject command) throws Exception {
        String name = text(command, "queue");
        long flags = 0;
        if (flag(command, "read")) {
            flags = QueueFlags.setReader(flags);
        }
        if (flag(command, "write")) {
            flags = QueueFlags.setAck(QueueFlags.setWriter(flags));
        }
        Queue queue = session.getQueue(new Uri(name), flags, event -> {}, this::acknowledged, this::pushed);
        queue.open(QueueOptions.createDefault(), TIMEOUT);
        queues.put(name, queue);
        return new JsonObject();
    }

    private void post(int id, JsonObject command) {
        try {
            Queue queue = queues.get(text(command, "queue"));
            byte[] data = Base64.getDecoder().decode(text(command, "data"));
            PutMessage message = queue.createPutMessage(ByteBuffer.wrap(data));
            message.setCorrelationId(id);
            if (command.has("properties")) {
                MessageProperties properties = message.messageProperties();
                command.getAsJsonObject("properties").entrySet().forEach(
                        each -> set(properties, each.getKey(), each.getValue().getAsJsonPrimitive()));
            }
            queue.post(message);
        } catch (Exception error) {
            write(id, false, named("error", error.toString()));
        }
    }

    private static void set(MessageProperties properties, String name, JsonPrimitive value) {
        if (value.isBoolean()) {
            properties.setPropertyAsBool(name, value.getAsBoolean());
        } else if (value.isNumber()) {
            properties.setPropertyAsInt32(name, value.getAsInt());
        } else {
            properties.setPropertyAsString(name, value.getAsString());
        }
    }

    private void acknowledged(AckMessage message) {
        write((Integer) message.correlationId().userData(), true, named("status", message.status().toString()));
    }

    private void pushed(PushMessage message) {
        String guid = message.messageGUID().toHex().toUpperCase();
        received.put(guid, message);
        JsonObject found = named("guid", guid);
        try {
            ByteArrayOutputStream data = new ByteArrayOutputStream();
            for (ByteBuffer part : message.payload()) {
                byte[] bytes = new byte[part.remaining()];
                part.get(bytes);
                data.write(bytes);
            }
            found.addProperty("data", Base64.getEncoder().encodeToString(data.toByteArray()));
            JsonObject properties = new JsonObject();
            if (message.hasMessageProperties()) {
                Iterator<MessageProperty> all = message.propertyIterator();
                while (all.hasNext()) {
                    MessageProperty each = all.next();
                    properties.add(each.name(), plain(each.value()));
                }
            }
            found.add("properties", properties);
        } catch (Exception error) {
            found.addProperty("error", error.toString());
        }
        String queue = message.queue().uri().toString();
        synchronized (arrived) {
            arrived.computeIfAbsent(queue, any -> new ArrayDeque<>()).add(found);
        }
        match(queue);
    }

    private JsonElement plain(Object value) {
        return value instanceof byte[] bytes
                ? new JsonPrimitive(Base64.getEncoder().encodeToString(bytes))
                : gson.toJsonTree(value);
    }

    private void receive(int id, String name) {
        Queue queue = queues.get(name);
        if (queue == null) {
            write(id, false, named("error", "the queue is not open"));
            return;
        }
        synchronized (arrived) {
            wanted.computeIfAbsent(queue.uri().toString(), any -> new ArrayDeque<>()).add(id);
        }
        match(queue.uri().toString());
    }

    private void match(String queue) {
        synchronized (arrived) {
            ArrayDeque<JsonObject> messages = arrived.getOrDefault(queue, new ArrayDeque<>());
            ArrayDeque<Integer> numbers = wanted.getOrDefault(queue, new ArrayDeque<>());
            while (!messages.isEmpty() && !numbers.isEmpty()) {
                JsonObject message = messages.remove();
                write(numbers.remove(), !message.has("error"), message);
            }
        }
    }

    private JsonObject confirm(String guid) {
        return named("result", received.remove(guid).confirm().toString());
    }

    private JsonObject close(String name) {
        queues.remove(name).close(TIMEOUT);
        return new JsonObject();
    }

    private JsonObject stop() {
        session.stop(TIMEOUT);
        session.linger();
        return new JsonObject();
    }

    private void answer(int id, Call call) {
        try {
            write(id, true, call.run());
        } catch (Exception error) {
            write(id, false, named("error", error.toString()));
        }
    }

    private void write(int id, boolean ok, JsonObject answer) {
        answer.addProperty("id", id);
        answer.addProperty("ok", ok);
        synchronized (out) {
            out.println(gson.toJson(answer));
        }
    }

    private static JsonObject named(String name, String value) {
        JsonObject made = new JsonObject();
        made.addProperty(name, value);
        return made;
    }

    private static String text(JsonObject command, String name) {
        return command.get(name).getAsString();
    }

    private static boolean flag(JsonObject command, String name) {
        return command.has(name) && command.get(name).getAsBoolean();
    }
}
