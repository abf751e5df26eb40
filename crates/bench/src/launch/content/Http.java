import com.sun.net.httpserver.HttpServer;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.util.stream.Collectors;
import java.util.stream.IntStream;

/** Asks a server within itself for a text, and counts its words. */
public class Http {
    public static void main(String[] arguments) throws Exception {
        HttpServer server = HttpServer.create(new InetSocketAddress(InetAddress.getLoopbackAddress(), 0), 0);
        String text = IntStream.range(0, 1000).mapToObj(number -> "word" + number % 37).collect(Collectors.joining(" "));
        server.createContext("/", exchange -> {
            exchange.sendResponseHeaders(200, text.length());
            exchange.getResponseBody().write(text.getBytes());
            exchange.close();
        });
        server.start();
        URI address = URI.create("http://127.0.0.1:" + server.getAddress().getPort() + "/");
        HttpClient client = HttpClient.newBuilder().version(HttpClient.Version.HTTP_1_1).build();
        String body = client.send(HttpRequest.newBuilder(address).build(), HttpResponse.BodyHandlers.ofString()).body();
        System.out.println(java.util.Arrays.stream(body.split(" ")).distinct().count());
        System.exit(0);
    }
}
