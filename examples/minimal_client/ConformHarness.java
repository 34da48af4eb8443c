// SPDX-License-Identifier: Apache-2.0
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.*;
import java.util.concurrent.*;

/**
 * Drives MinimalClient for the conformance suite: conformance/clients.md describes the commands.
 *
 * <pre>
 * javac -d out MinimalClient.java ConformHarness.java
 * python -m conformance client -- java -cp out ConformHarness
 * </pre>
 */
final class ConformHarness {
    static final Map<Integer, String> STATUSES = Map.of(0, "SUCCESS", 1, "LIMIT_MESSAGES", 2, "LIMIT_BYTES", 6, "STORAGE_FAILURE",
            7, "NOT_READY"); // AckMessage; other numbers are UNKNOWN [11.7]
    static final Map<String, MinimalClient.Queue> queues = new ConcurrentHashMap<>();
    static final Map<String, MinimalClient.Message> received = new ConcurrentHashMap<>();
    static MinimalClient client;

    public static void main(String[] args) throws Exception {
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line; (line = in.readLine()) != null;) {
            Map<?, ?> command = (Map<?, ?>) MinimalClient.Json.parse(line);
            perform(command).handle((members, error) -> {
                Map<String, Object> answer = new LinkedHashMap<>(Map.of("id", command.get("id"), "ok", error == null));
                if (error == null) answer.putAll(members);
                else answer.put("error", String.valueOf(error));
                synchronized (System.out) {
                    System.out.println(MinimalClient.Json.write(answer));
                }
                return null;
            });
        }
        System.exit(0);
    }

    static CompletableFuture<Map<String, ?>> perform(Map<?, ?> command) {
        try {
            String uri = (String) command.get("queue"), what = (String) command.get("do");
            MinimalClient.Queue queue = uri == null ? null : queues.get(uri);
            return switch (what) {
                case "hello" -> CompletableFuture.completedFuture(Map.of("name", "MinimalClient"));
                case "start" -> {
                    client = new MinimalClient(System.getenv("BMQ_BROKER_URI"));
                    yield client.connected.thenApply(x -> Map.of());
                }
                case "open" -> {
                    int flags = (command.get("read") == Boolean.TRUE ? 2 : 0) + (command.get("write") == Boolean.TRUE ? 4 : 0);
                    yield client.open(uri, flags, "").thenApply(opened -> {
                        queues.put(uri, opened);
                        return Map.of();
                    });
                }
                case "post" -> client
                        .post(queue, properties(command.get("properties")), Base64.getDecoder().decode((String) command.get("data")))
                        .thenApply(status -> Map.of("status", STATUSES.getOrDefault(status, "UNKNOWN")));
                case "receive" -> CompletableFuture.supplyAsync(() -> receive(queue), task -> new Thread(task).start());
                case "confirm" -> {
                    client.confirm(received.remove((String) command.get("guid")));
                    yield CompletableFuture.completedFuture(Map.of());
                }
                case "close" -> client.close(queues.remove(uri)).thenApply(x -> Map.of());
                case "stop" -> CompletableFuture.supplyAsync(() -> {
                    try {
                        client.close();
                    } catch (Exception e) {
                        throw new CompletionException(e);
                    }
                    return Map.of();
                }, task -> new Thread(task).start());
                default -> CompletableFuture.failedFuture(new UnsupportedOperationException(what));
            };
        } catch (RuntimeException e) {
            return CompletableFuture.failedFuture(e);
        }
    }

    static Map<String, ?> receive(MinimalClient.Queue queue) {
        try {
            MinimalClient.Message message = queue.messages.take();
            Map<String, Object> properties = new TreeMap<>(message.properties());
            properties.replaceAll((name, value) -> value instanceof byte[] bytes ? Base64.getEncoder().encodeToString(bytes) : value);
            received.put(MinimalClient.hex(message.guid()), message);
            return Map.of("data", Base64.getEncoder().encodeToString(message.payload()), "guid", MinimalClient.hex(message.guid()),
                    "properties", properties);
        } catch (InterruptedException e) {
            throw new CompletionException(e);
        }
    }

    static Map<String, Object> properties(Object given) {
        Map<String, Object> properties = new TreeMap<>();
        if (given instanceof Map<?, ?> map) map.forEach((name, value) -> properties.put((String) name,
                value instanceof Number number ? narrow(number.longValue()) : value));
        return properties;
    }

    static Object narrow(long number) { return number == (int) number ? (Object) (int) number : (Object) number; }
}
