import com.sun.management.OperatingSystemMXBean;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.lang.management.ManagementFactory;
import java.util.Arrays;
import java.util.concurrent.CountDownLatch;
import org.jctools.queues.SpscArrayQueue;
import reactor.core.publisher.Flux;
import reactor.core.scheduler.Scheduler;
import reactor.core.scheduler.Schedulers;

/**
 * Does what its standard input says, a line each, and answers a number on a line:
 *
 * <pre>
 *   ring N BURST      0 .. N-1 through a SpscArrayQueue between two threads; answers N, or -1
 *   batches N SIZE    N arrays through map and publishOn; answers the sum of all numbers
 *   cpu               nanoseconds of processor time that this process has taken
 * </pre>
 */
public final class Drivers {
    private static final int CAPACITY = 1024;
    private static final int SPINS = 256; // as waiting.h does

    public static void main(String[] arguments) throws Exception {
        OperatingSystemMXBean system =
                (OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean();
        BufferedReader input = new BufferedReader(new InputStreamReader(System.in));
        for (String line = input.readLine(); line != null; line = input.readLine()) {
            String[] words = line.split(" ");
            switch (words[0]) {
                case "ring":
                    System.out.println(
                            ring(Integer.parseInt(words[1]), Integer.parseInt(words[2])));
                    break;
                case "batches":
                    System.out.println(
                            batches(Integer.parseInt(words[1]), Integer.parseInt(words[2])));
                    break;
                case "cpu":
                    System.out.println(system.getProcessCpuTime());
                    break;
                default:
                    throw new IllegalArgumentException(line);
            }
        }
    }

    private static int waitALittle(int idle) {
        if (idle % SPINS == SPINS - 1) {
            Thread.yield();
        } else {
            Thread.onSpinWait();
        }
        return idle + 1;
    }

    /** What is handed over exists before: a queue of references does not have to make them. */
    private static final Integer[] ELEMENTS = new Integer[CAPACITY * 4];

    static {
        Arrays.setAll(ELEMENTS, index -> index);
    }

    private static Integer element(int index) {
        return ELEMENTS[index & (ELEMENTS.length - 1)];
    }

    private static int ring(int n, int burst) throws InterruptedException {
        SpscArrayQueue<Integer> queue = new SpscArrayQueue<>(CAPACITY);
        Consumer consumer = new Consumer(queue, n, burst);
        Thread producer = new Thread(() -> produce(queue, n, burst));
        Thread consuming = new Thread(consumer);
        producer.start();
        consuming.start();
        producer.join();
        consuming.join();
        return consumer.right ? n : -1;
    }

    private static void produce(SpscArrayQueue<Integer> queue, int n, int burst) {
        int[] next = {0};
        int idle = 0;
        while (next[0] < n) {
            int done;
            if (burst == 1) {
                done = queue.offer(element(next[0])) ? 1 : 0;
                next[0] += done;
            } else {
                done = queue.fill(() -> element(next[0]++), Math.min(burst, n - next[0]));
            }
            idle = done == 0 ? waitALittle(idle) : 0;
        }
    }

    private static final class Consumer implements Runnable {
        private final SpscArrayQueue<Integer> queue;
        private final int n;
        private final int burst;
        private int taken;
        boolean right = true;

        Consumer(SpscArrayQueue<Integer> queue, int n, int burst) {
            this.queue = queue;
            this.n = n;
            this.burst = burst;
        }

        @Override
        public void run() {
            int idle = 0;
            while (taken < n) {
                int done = 0;
                if (burst == 1) {
                    Integer element = queue.poll();
                    if (element != null) {
                        take(element);
                        done = 1;
                    }
                } else {
                    done = queue.drain(this::take, burst);
                }
                idle = done == 0 ? waitALittle(idle) : 0;
            }
        }

        private void take(Integer element) {
            right &= element == (taken & (ELEMENTS.length - 1));
            taken++;
        }
    }

    private static long batches(int n, int size) throws InterruptedException {
        long[] sum = new long[1];
        CountDownLatch done = new CountDownLatch(1);
        Scheduler scheduler = Schedulers.newSingle("batches");
        Flux.range(0, n)
                .map(number -> filled(number, size))
                .map(Drivers::addOne)
                .publishOn(scheduler, CAPACITY)
                .subscribe(batch -> sum[0] += total(batch), error -> done.countDown(), done::countDown);
        done.await();
        scheduler.dispose();
        return sum[0];
    }

    private static long[] filled(int number, int size) {
        long[] batch = new long[size];
        Arrays.fill(batch, number);
        return batch;
    }

    private static long[] addOne(long[] batch) {
        long[] answer = new long[batch.length];
        for (int i = 0; i < batch.length; i++) {
            answer[i] = batch[i] + 1;
        }
        return answer;
    }

    private static long total(long[] batch) {
        long sum = 0;
        for (long number : batch) {
            sum += number;
        }
        return sum;
    }
}
