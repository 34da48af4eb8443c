// SPDX-License-Identifier: Apache-2.0
import java.io.*;
import java.math.BigInteger;
import java.net.*;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.*;
import java.util.concurrent.*;
import java.util.concurrent.locks.LockSupport;
import java.util.zip.*;

/**
 * A minimal client for BlazingMQ, written from docs/protocol/protocol.md alone. Numbers like [10.5] name the statements of that page.
 *
 * <pre>
 * java MinimalClient.java tcp://localhost:30114 post bmq://bmq.test.mem.priority/orders region=eu amount=7 hello
 * java MinimalClient.java tcp://localhost:30114 consume bmq://bmq.test.mem.priority/orders --expression "amount > 5" --count 1
 * </pre>
 */
public final class MinimalClient implements AutoCloseable {
    static final int CONTROL = 1, PUT = 2, CONFIRM = 3, PUSH = 4, ACK = 5, HEARTBEAT_REQ = 11, HEARTBEAT_RSP = 12; // [2.2]
    static final int READ = 2, WRITE = 4, MAX_EVENT = 128 << 20, SILENCE_MS = 5_000;

    /** One opening of a queue; a fanout queue is opened once for each application [7.23]. */
    static final class Queue {
        String uri, appId, expression = "";
        int qId, subId, flags, sId;
        boolean open;
        final CompletableFuture<Queue> opened = new CompletableFuture<>();
        final BlockingQueue<Message> messages = new LinkedBlockingQueue<>();
    }

    record Message(Queue queue, byte[] guid, Map<String, Object> properties, byte[] payload) {}

    /** A message without an acknowledgement. It keeps its GUID when it is sent again [16.4]. */
    record Post(Queue queue, byte[] guid, Map<String, Object> properties, byte[] payload, CompletableFuture<Integer> status) {}

    record Request(String kind, CompletableFuture<Map<String, Object>> answer) {}

    static final class Refused extends Exception {
        Refused(String reason) { super(reason); }
    }

    private final URI broker;
    private final byte[] clientId = new byte[6];
    private final long start = System.nanoTime(), epoch = System.currentTimeMillis() * 1_000_000;
    private final Map<Integer, Request> pending = new HashMap<>();
    private final Map<String, Post> posts = new LinkedHashMap<>(); // by GUID, in the order of the calls
    private final List<Queue> queues = new ArrayList<>();
    final CompletableFuture<Void> connected = new CompletableFuture<>();
    private final Thread reader = new Thread(this::run, "reader");
    private final Map<String, Integer> numbers = new HashMap<>(); // qId, by URI
    private int nextRequest = 1, nextSubscription = 1, nextApplication = 1, counter;
    private OutputStream out;
    private String features = "";
    private boolean negotiated;
    private volatile boolean ended;

    MinimalClient(String uri) {
        broker = URI.create(uri);
        new Random().nextBytes(clientId);
        reader.setDaemon(true);
        reader.start();
    }

    // ---- The application's calls. They return at once; the futures complete on the thread of the reader.

    synchronized CompletableFuture<Queue> open(String uri, int flags, String expression) {
        Queue queue = new Queue();
        String[] parts = uri.split("\\?id=");
        queue.uri = uri;
        queue.flags = flags;
        queue.expression = expression;
        queue.qId = numbers.computeIfAbsent(parts[0], name -> numbers.size()); // shared by all applications [7.5, 7.10]
        queue.appId = parts.length > 1 ? parts[1] : "__default";
        queue.subId = parts.length > 1 ? nextApplication++ : 0;
        queues.add(queue);
        if (negotiated) restore(queue);
        return queue.opened;
    }

    /** Posts a message. The result is the status of its acknowledgement, 0 for a stored message [11]. */
    synchronized CompletableFuture<Integer> post(Queue queue, Map<String, Object> properties, byte[] payload) {
        counter = counter + 1 & 0x3fffff;
        long tick = System.nanoTime() - start;
        byte[] guid = ByteBuffer.allocate(16).putInt(1 << 30 | counter << 8 | (int) (tick >>> 48) & 0xff) // [10.11]
                .putShort((short) (tick >>> 32)).putInt((int) tick).put(clientId).array();
        Post post = new Post(queue, guid, properties, payload, new CompletableFuture<>());
        posts.put(hex(guid), post);
        if (queue.open) transmit(post);
        return post.status;
    }

    void confirm(Message message) {
        byte[] body = ByteBuffer.allocate(28).putInt(0x16 << 24).putInt(message.queue.qId).put(message.guid)
                .putInt(message.queue.subId).array(); // [14.2]
        try {
            send(CONFIRM, 0, body);
        } catch (IOException e) {
            log("a confirmation was lost; the message comes again [16.8]");
        }
    }

    /** Waits for acknowledgements, withdraws the subscription, and closes the queue [15.1]. */
    CompletableFuture<Void> close(Queue queue) {
        CompletableFuture<?>[] waiting;
        synchronized (this) {
            waiting = posts.values().stream().filter(p -> p.queue == queue).map(Post::status).toArray(CompletableFuture[]::new);
        }
        return CompletableFuture.allOf(waiting).handle((x, e) -> null).thenCompose(x -> {
            synchronized (this) {
                queues.remove(queue);
                queue.open = false;
            }
            return (queue.flags & READ) == 0 ? CompletableFuture.completedFuture(null) : configure(queue, false);
        }).handle((x, e) -> null).thenCompose(x -> {
            boolean last = queues.stream().noneMatch(other -> other.qId == queue.qId);
            return request("closeQueue", Map.of("handleParameters", handle(queue), "isFinal", last)); // [15.2]
        }).handle((x, e) -> null); // a refused closeQueue is closed [15.7]
    }

    /** Closes the queues, disconnects, and waits for the answer [15.9]. */
    @Override
    public void close() throws Exception {
        if (ended) return;
        for (Queue queue : List.copyOf(queues)) close(queue).get(30, TimeUnit.SECONDS);
        ended = true;
        request("disconnect", Map.of()).handle((x, e) -> null).get(30, TimeUnit.SECONDS);
        synchronized (this) {
            if (out != null) out.close();
        }
    }

    // ---- The connection.

    private void run() {
        for (long pause = 100; !ended; pause = Math.min(2 * pause, 5_000)) {
            try (Socket socket = new Socket()) {
                socket.connect(new InetSocketAddress(broker.getHost(), broker.getPort()), 10_000);
                socket.setTcpNoDelay(true);
                socket.setSoTimeout(60_000); // [4.18]
                synchronized (this) {
                    out = socket.getOutputStream();
                }
                control(Map.of("clientIdentity", identity()));
                read(socket);
            } catch (Refused e) {
                ended = true;
                connected.completeExceptionally(e);
            } catch (IOException e) {
                if (!ended) log("connection lost: " + e.getMessage());
            }
            if (negotiated) pause = 100;
            lost();
            if (!ended) LockSupport.parkNanos(pause * 1_000_000); // [16.2]
        }
    }

    private void read(Socket socket) throws IOException, Refused {
        DataInputStream in = new DataInputStream(new BufferedInputStream(socket.getInputStream()));
        for (int silences = 0;;) {
            int first;
            try {
                first = in.read();
                silences = 0;
            } catch (SocketTimeoutException e) { // [6.5]
                if (!negotiated || ++silences > 3) throw new IOException("the broker is silent");
                send(HEARTBEAT_REQ, 0, new byte[0]);
                continue;
            }
            if (first < 0) throw new EOFException("closed by the broker");
            int length = first << 24 | in.readUnsignedByte() << 16 | in.readUnsignedShort(); // EventHeader
            int type = in.readUnsignedByte() & 0x3f, skip = 4 * in.readUnsignedByte() - 8, codec = in.readUnsignedByte() >> 5;
            in.readByte();
            if (length < 8 || length > MAX_EVENT) throw new IOException("no event has the length " + length); // [2.14]
            byte[] body = in.readNBytes(length - 8);
            if (body.length < length - 8) throw new EOFException("closed within an event"); // [2.6]
            try {
                ByteBuffer data = ByteBuffer.wrap(body, skip, body.length - skip).slice(); // [1.8]
                if (type == CONTROL && codec == 1) answer(new String(unpad(data), StandardCharsets.UTF_8), socket);
                else if (type == PUSH) push(data);
                else if (type == ACK) ack(data);
                else if (type == HEARTBEAT_REQ) send(HEARTBEAT_RSP, 0, new byte[0]); // [6.1]; others are ignored [2.7]
            } catch (RuntimeException | StackOverflowError e) {
                log("ignored a damaged event: " + e); // [2.13]
                if (!negotiated) throw new IOException("no answer to the negotiation");
            }
        }
    }

    private synchronized void lost() {
        out = null;
        negotiated = false;
        List<Request> requests = List.copyOf(pending.values());
        pending.clear();
        for (Queue queue : queues) {
            queue.open = false;
            queue.messages.clear(); // the broker delivers them again [16.9]
        }
        for (Request request : requests) request.answer.completeExceptionally(new IOException("connection lost"));
    }

    private synchronized void send(int type, int typeSpecific, byte[] body) throws IOException {
        if (out == null) throw new IOException("not connected");
        out.write(ByteBuffer.allocate(8 + body.length).putInt(8 + body.length).put((byte) (0x40 | type)).put((byte) 2)
                .put((byte) typeSpecific).put((byte) 0).put(body).array()); // EventHeader [2.3]
    }

    private void control(Map<String, ?> message) throws IOException {
        send(CONTROL, 0x20, pad(utf8(Json.write(message)))); // JSON [3.1, 2.16]
    }

    private synchronized CompletableFuture<Map<String, Object>> request(String kind, Map<String, ?> body) {
        Request request = new Request(kind, new CompletableFuture<>());
        int rId = nextRequest++; // [3.23]
        pending.put(rId, request);
        try {
            control(Map.of("rId", rId, kind, body));
        } catch (IOException e) {
            pending.remove(rId);
            request.answer.completeExceptionally(e);
        }
        return request.answer;
    }

    // ---- Control messages.

    private Map<String, ?> identity() { // [4.1]
        return Map.ofEntries(Map.entry("protocolVersion", 1), Map.entry("sdkVersion", 1), Map.entry("clientType", "E_TCPCLIENT"),
                Map.entry("processName", "MinimalClient"), Map.entry("pid", ProcessHandle.current().pid()),
                Map.entry("sessionId", 1), Map.entry("hostName", ""), Map.entry("clusterName", ""),
                Map.entry("features", "PROTOCOL_ENCODING:JSON;MPS:MESSAGE_PROPERTIES_EX"), Map.entry("clusterNodeId", -1), // [4.20]
                Map.entry("sdkLanguage", "E_UNKNOWN"), Map.entry("userAgent", "MinimalClient:1"), // [4.8]
                Map.entry("guidInfo", Map.of("clientId", hex(clientId), "nanoSecondsFromEpoch", epoch))); // [4.29]
    }

    @SuppressWarnings("unchecked")
    private synchronized void answer(String text, Socket socket) throws IOException, Refused {
        Map<String, Object> message = (Map<String, Object>) Json.parse(text);
        if (!negotiated) {
            Map<String, Object> response = (Map<String, Object>) message.get("brokerResponse");
            String result = ((Map<String, Object>) response.get("result")).toString();
            if (!result.contains("category=E_SUCCESS")) throw new Refused("the broker refuses the session: " + result); // [4.13]
            features = String.valueOf(((Map<String, Object>) response.get("brokerIdentity")).get("features"));
            negotiated = true;
            socket.setSoTimeout(SILENCE_MS);
            for (Queue queue : List.copyOf(queues)) restore(queue); // [16.3]
            connected.complete(null);
            return;
        }
        Request request = pending.remove(((Number) message.get("rId")).intValue()); // [3.25]
        if (request == null) return; // [3.28]
        if (message.containsKey(request.kind + "Response")) request.answer.complete(message);
        else request.answer.completeExceptionally(new Refused(request.kind + " refused: " + message.get("status"))); // [3.27]
    }

    private Map<String, ?> handle(Queue queue) { // QueueHandleParameters [7.11]
        Map<String, Object> handle = new HashMap<>(Map.of("uri", queue.uri, "qId", queue.qId, "flags", queue.flags, "adminCount", 0,
                "readCount", (queue.flags & READ) / READ, "writeCount", (queue.flags & WRITE) / WRITE));
        if (queue.subId > 0) handle.put("subIdInfo", Map.of("subId", queue.subId, "appId", queue.appId)); // [7.21]
        return handle;
    }

    private synchronized CompletableFuture<Map<String, Object>> configure(Queue queue, boolean deliver) {
        Map<String, ?> limits = Map.of("maxUnconfirmedMessages", 1_000, "maxUnconfirmedBytes", 32 << 20,
                "consumerPriority", 0, "consumerPriorityCount", 1);
        if (!features.contains("SUBSCRIPTIONS:CONFIGURE_STREAM")) { // the older request [8.26]
            queue.sId = queue.subId;
            Map<String, Object> stream = new HashMap<>(deliver ? limits : Map.of());
            if (queue.subId > 0) stream.put("subIdInfo", Map.of("subId", queue.subId, "appId", queue.appId));
            return request("configureQueueStream", Map.of("qId", queue.qId, "streamParameters", stream));
        }
        queue.sId = nextSubscription++; // [8.7]
        Map<String, ?> expression = queue.expression.isEmpty() ? Map.of("version", "E_UNDEFINED", "text", "")
                : Map.of("version", "E_VERSION_1", "text", queue.expression); // [9.1]
        List<?> all = List.of(Map.of("sId", queue.sId, "expression", expression, "consumers", List.of(limits)));
        return request("configureStream", Map.of("qId", queue.qId, "streamParameters",
                Map.of("appId", queue.appId, "subscriptions", deliver ? all : List.of()))); // [8.5]
    }

    /** Opens a queue, also after a lost connection: the machine "Queue" in chapter 18. */
    private void restore(Queue queue) {
        request("openQueue", Map.of("handleParameters", handle(queue))).thenCompose(x -> // [7.18]
                (queue.flags & READ) == 0 ? CompletableFuture.completedFuture(null) : configure(queue, true).whenComplete((y, e) -> {
                    if (e instanceof Refused) request("closeQueue", Map.of("handleParameters", handle(queue), "isFinal", true));
                })).whenComplete((x, error) -> opened(queue, error instanceof CompletionException ? error.getCause() : error));
    }

    private synchronized void opened(Queue queue, Throwable error) {
        List<Post> own = posts.values().stream().filter(post -> post.queue == queue).toList();
        if (error == null) {
            queue.open = queues.contains(queue);
            own.forEach(this::transmit); // posts without an acknowledgement, in their order [16.4]
            queue.opened.complete(queue);
        } else if (error instanceof Refused) { // the queue is lost, the others continue [16.7]
            queues.remove(queue);
            posts.values().removeAll(own);
            own.forEach(post -> post.status.completeExceptionally(error));
            queue.opened.completeExceptionally(error);
        } // otherwise the connection was lost: the next one opens the queue again [16.6]
    }

    // ---- Messages.

    private void transmit(Post post) {
        boolean fresh = features.contains("MPS:MESSAGE_PROPERTIES_EX"), any = !post.properties.isEmpty(); // [12.6]
        byte[] area = any ? Properties.write(post.properties, fresh) : new byte[0]; // [12.2]
        byte[] data = pad(join(area, post.payload));
        CRC32C crc = new CRC32C(); // [10.6]
        crc.update(data, 0, area.length + post.payload.length); // without the padding [10.5]
        ByteBuffer put = ByteBuffer.allocate(36 + data.length).putInt((any ? 3 : 1) << 28 | 9 + data.length / 4).putInt(9)
                .putInt(post.queue.qId).put(post.guid).putInt((int) crc.getValue()) // PutHeader; flags: ACK_REQUESTED [11.12]
                .putShort((short) (any && fresh ? 1 : 0)).putShort((short) 0).put(data); // schemaId [12.4]
        try {
            send(PUT, 0, put.array());
        } catch (IOException e) {
            log("the post waits for the next connection: " + e.getMessage());
        }
    }

    private synchronized void ack(ByteBuffer data) {
        int step = 4 * (data.get(0) & 15);
        for (int at = 4 * (data.get(0) >> 4 & 15); at + step <= data.limit() && step > 0; at += step) { // [1.8]
            byte[] guid = slice(data, at + 4, at + 20);
            Post post = posts.get(hex(guid));
            if (post == null || post.queue.qId != data.getInt(at + 20)) continue; // [11.6, 11.8]
            posts.remove(hex(guid));
            post.status.complete(data.get(at) & 15);
        }
    }

    private void push(ByteBuffer data) {
        for (int at = 0, next; at < data.limit(); at = next) {
            int flags = data.get(at) >> 4 & 15, options = at + 4 * (data.get(at + 7) & 31);
            next = at + 4 * (data.getInt(at) & 0xfffffff);
            int schema = options - at > 28 ? data.getShort(at + 28) : 0, content = options + 4 * (data.getInt(at + 4) >>> 8); // [1.9]
            if (content >= next || options < at + 28) throw new IllegalArgumentException("lengths that contradict each other");
            try {
                byte[] bytes = unpad(data.slice(content, next - content));
                boolean any = (flags & 2) != 0, compressed = (data.get(at + 7) >> 5 & 7) == 1;
                if (compressed && (schema == 0 || !any)) bytes = inflate(bytes); // the old encoding is compressed as well [10.13]
                int area = any ? 4 * (ByteBuffer.wrap(bytes).getInt(0) & 0xffffff) : 0;
                Map<String, Object> properties = any ? Properties.read(bytes, area, schema != 0) : Map.of();
                byte[] payload = Arrays.copyOfRange(bytes, area, bytes.length);
                if (compressed && schema != 0 && any) payload = inflate(payload);
                for (int id : subscriptions(data, options, content)) // [13.18]
                    for (Queue queue : receivers(data.getInt(at + 8), id))
                        queue.messages.add(new Message(queue, slice(data, at + 12, at + 28), properties, payload));
            } catch (RuntimeException | IOException e) {
                log("skipped a damaged message: " + e); // the next message is intact [12.15]
            }
        }
    }

    private static List<Integer> subscriptions(ByteBuffer data, int at, int end) { // [13.3]
        List<Integer> ids = new ArrayList<>();
        for (int length; at < end; at += length) {
            int header = data.getInt(at), type = header >>> 26, step = type == 3 ? 4 * (header >>> 21 & 15) : 4;
            boolean packed = (header >>> 25 & 1) == 1;
            length = packed ? 4 : 4 * (header & 0x1fffff);
            if (length == 0 || step == 0) throw new IllegalArgumentException("an option without length");
            for (int id = at + 4; !packed && (type == 1 || type == 3) && id < at + length; id += step) ids.add(data.getInt(id));
        }
        return ids.isEmpty() ? List.of(0) : ids;
    }

    private synchronized List<Queue> receivers(int qId, int id) {
        List<Queue> readers = queues.stream().filter(queue -> queue.qId == qId && (queue.flags & READ) != 0).toList();
        return readers.size() == 1 ? readers : readers.stream().filter(queue -> queue.sId == id).toList(); // none: [13.8]
    }

    /** The properties of a message: chapter 12. */
    static final class Properties {
        static byte[] write(Map<String, Object> properties, boolean fresh) {
            ByteArrayOutputStream headers = new ByteArrayOutputStream(), content = new ByteArrayOutputStream();
            new TreeMap<>(properties).forEach((key, value) -> { // [12.12]
                byte[] name = utf8(key), bytes = bytes(value);
                headers.writeBytes(ByteBuffer.allocate(6).putInt(type(value) << 26 | (fresh ? content.size() : bytes.length)) // [12.3]
                        .putShort((short) name.length).array());
                content.writeBytes(join(name, bytes));
            });
            byte[] area = pad(join(new byte[6], join(headers.toByteArray(), content.toByteArray())));
            ByteBuffer.wrap(area).putInt(0x1b << 24 | area.length / 4).putShort((short) properties.size());
            return area;
        }

        static Map<String, Object> read(byte[] bytes, int length, boolean fresh) {
            ByteBuffer area = ByteBuffer.wrap(bytes, 0, length);
            int step = 2 * (area.get(0) >> 3 & 7), headers = 2 * (area.get(0) & 7), count = area.get(5) & 0xff;
            int names = headers + count * step, end = length - area.get(length - 1), name = names;
            Map<String, Object> properties = new LinkedHashMap<>();
            for (int i = 0; i < count; i++) {
                int header = area.getInt(headers + i * step), field = header & 0x3ffffff;
                int value = name + (area.getShort(headers + i * step + 4) & 0xfff);
                int next = !fresh ? value + field : i + 1 == count ? end : names + (area.getInt(headers + (i + 1) * step) & 0x3ffffff);
                properties.put(new String(bytes, name, value - name, StandardCharsets.UTF_8),
                        value(header >>> 26 & 31, Arrays.copyOfRange(bytes, value, next)));
                name = next;
            }
            return properties;
        }

        static int type(Object v) { // PropertyType
            return v instanceof Boolean ? 1 : v instanceof Byte ? 2 : v instanceof Short ? 3 : v instanceof Integer ? 4
                    : v instanceof Long ? 5 : v instanceof String ? 6 : 7;
        }

        static byte[] bytes(Object v) { // [12.10]
            if (v instanceof Boolean b) return new byte[] {(byte) (b ? 1 : 0)};
            if (v instanceof Byte b) return new byte[] {b};
            if (v instanceof Short s) return ByteBuffer.allocate(2).putShort(s).array();
            if (v instanceof Integer i) return ByteBuffer.allocate(4).putInt(i).array();
            if (v instanceof Long l) return ByteBuffer.allocate(8).putLong(l).array();
            return v instanceof String s ? utf8(s) : (byte[]) v;
        }

        static Object value(int type, byte[] bytes) {
            ByteBuffer buffer = ByteBuffer.wrap(bytes);
            return switch (type) {
                case 1 -> buffer.get() != 0;
                case 2 -> buffer.get();
                case 3 -> buffer.getShort();
                case 4 -> buffer.getInt();
                case 5 -> buffer.getLong();
                case 6 -> new String(bytes, StandardCharsets.UTF_8);
                default -> bytes;
            };
        }
    }

    /** The JSON that control messages need [3.6, 3.7, 3.8]. */
    static final class Json {
        private final String text;
        private int at;

        private Json(String text) { this.text = text; }

        static Object parse(String text) { return new Json(text).value(); }

        static String write(Object v) {
            StringJoiner parts = v instanceof List ? new StringJoiner(",", "[", "]") : new StringJoiner(",", "{", "}");
            if (v instanceof Map<?, ?> map) map.forEach((key, value) -> parts.add(write(key) + ":" + write(value)));
            else if (v instanceof List<?> list) list.forEach(entry -> parts.add(write(entry)));
            else if (v instanceof String s) return '"' + s.replace("\\", "\\\\").replace("\"", "\\\"").replace("\n", "\\n")
                    .replace("\t", "\\t").replace("\r", "\\r") + '"';
            else return String.valueOf(v);
            return parts.toString();
        }

        private Object value() {
            char c = next();
            if (c == '"') return string();
            if (c == '{') {
                Map<String, Object> map = new LinkedHashMap<>();
                while ((c = next()) != '}') if (c == '"') map.put(string(), next() == ':' ? value() : null);
                return map;
            }
            if (c == '[') {
                List<Object> list = new ArrayList<>();
                while ((c = next()) != ']') {
                    if (c == ',') continue;
                    at--;
                    list.add(value());
                }
                return list;
            }
            int from = at - 1;
            while (at < text.length() && ",]} \t\r\n".indexOf(text.charAt(at)) < 0) at++;
            String word = text.substring(from, at);
            return switch (word) {
                case "true", "false" -> word.equals("true");
                case "null" -> null;
                default -> word.matches("-?\\d+") ? (Object) new BigInteger(word) : Double.valueOf(word);
            };
        }

        private char next() {
            while (Character.isWhitespace(text.charAt(at))) at++;
            return text.charAt(at++);
        }

        private String string() {
            StringBuilder result = new StringBuilder();
            for (char c; (c = text.charAt(at++)) != '"'; result.append(c)) {
                if (c != '\\') continue;
                c = text.charAt(at++);
                int escape = "bfnrt".indexOf(c);
                if (escape >= 0) c = "\b\f\n\r\t".charAt(escape);
                if (c == 'u') c = (char) Integer.parseInt(text.substring(at, at += 4), 16);
            }
            return result.toString();
        }
    }

    // ---- Bytes.

    static byte[] pad(byte[] data) { // [2.15]
        int padding = 4 - data.length % 4;
        byte[] padded = Arrays.copyOf(data, data.length + padding);
        Arrays.fill(padded, data.length, padded.length, (byte) padding);
        return padded;
    }

    static byte[] unpad(ByteBuffer data) { // [2.17]
        int padding = data.get(data.limit() - 1);
        if (padding < 1 || padding > 4) throw new IllegalArgumentException("padding of " + padding + " bytes");
        return slice(data, 0, data.limit() - padding);
    }

    static byte[] slice(ByteBuffer data, int from, int to) {
        byte[] bytes = new byte[to - from];
        data.get(from, bytes);
        return bytes;
    }

    static byte[] join(byte[] a, byte[] b) { return ByteBuffer.allocate(a.length + b.length).put(a).put(b).array(); }

    static byte[] utf8(String text) { return text.getBytes(StandardCharsets.UTF_8); }

    static byte[] inflate(byte[] data) throws IOException { return new InflaterInputStream(new ByteArrayInputStream(data)).readAllBytes(); }

    static String hex(byte[] bytes) { return HexFormat.of().withUpperCase().formatHex(bytes); } // [10.12]

    static void log(String text) { System.err.println("MinimalClient: " + text); }

    // ---- The command line.

    static Object typed(String text) {
        if (text.equals("true") || text.equals("false")) return Boolean.valueOf(text);
        if (!text.matches("-?\\d{1,18}")) return text;
        long number = Long.parseLong(text);
        return number == (int) number ? (Object) (int) number : (Object) number;
    }

    static void post(MinimalClient client, Queue queue, List<String> arguments) throws Exception {
        Map<String, Object> properties = new HashMap<>();
        List<CompletableFuture<?>> printed = new ArrayList<>();
        for (String text : arguments) {
            int equals = text.indexOf('=');
            if (equals > 0 && printed.isEmpty()) properties.put(text.substring(0, equals), typed(text.substring(equals + 1)));
            else printed.add(client.post(queue, properties, utf8(text)).thenAccept(status -> System.out.println(status + " " + text)));
        }
        for (CompletableFuture<?> each : printed) each.get();
    }

    static void consume(MinimalClient client, Queue queue, int count) throws Exception {
        for (; count > 0; count--) {
            Message message = queue.messages.take();
            System.out.println(hex(message.guid) + " " + Json.write(message.properties) + " " + new String(message.payload, "UTF-8"));
            client.confirm(message); // after the work, not before [14.3]
        }
    }

    public static void main(String[] args) throws Exception {
        if (args.length < 3 || !args[1].matches("post|consume")) {
            System.err.println("usage: java MinimalClient.java tcp://HOST:PORT post QUEUE [KEY=VALUE...] PAYLOAD...\n"
                    + "       java MinimalClient.java tcp://HOST:PORT consume QUEUE [--expression E] [--count N]");
            System.exit(2);
        }
        MinimalClient client = new MinimalClient(args[0]);
        List<String> rest = List.of(args).subList(3, args.length);
        int option = rest.indexOf("--expression"), count = rest.indexOf("--count");
        try {
            Queue queue = client.open(args[2], args[1].equals("post") ? WRITE : READ, option < 0 ? "" : rest.get(option + 1)).get();
            if (args[1].equals("post")) post(client, queue, rest);
            else consume(client, queue, count < 0 ? Integer.MAX_VALUE : Integer.parseInt(rest.get(count + 1)));
        } catch (ExecutionException e) {
            log(e.getCause().getMessage());
            System.exit(1);
        }
        client.close();
    }
}
