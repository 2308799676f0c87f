package jvmtck;

import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import org.reactivestreams.Processor;
import org.reactivestreams.Publisher;
import org.reactivestreams.Subscriber;
import org.reactivestreams.tck.IdentityProcessorVerification;
import org.reactivestreams.tck.PublisherVerification;
import org.reactivestreams.tck.SubscriberBlackboxVerification;
import org.reactivestreams.tck.SubscriberWhiteboxVerification;
import org.reactivestreams.tck.SubscriberWhiteboxVerification.WhiteboxSubscriberProbe;
import org.reactivestreams.tck.TestEnvironment;

/**
 * The official verifications, each with its open methods answered by {@link Hooks}. JPype can
 * implement Java's interfaces but not extend its classes; nothing else is decided here.
 */
public final class Verifications {
  private Verifications() {}

  /** What a verification asks of the one who brings the implementation; Python answers. */
  public interface Hooks {
    Publisher<Object> createPublisher(long elements);

    Publisher<Object> createFailedPublisher();

    Subscriber<Object> createSubscriber();

    void triggerRequest(Subscriber<? super Object> subscriber);

    Subscriber<Object> createWhiteboxSubscriber(WhiteboxSubscriberProbe<Object> probe);

    Processor<Object, Object> createIdentityProcessor(int bufferSize);

    Object createElement(int element);
  }

  /** What a class says of itself, and how long the kit waits (milliseconds). */
  public record Settings(
      long expected,
      long silence,
      long poll,
      long references,
      long maxElements,
      long boundedDepth,
      boolean skipStochastic,
      int bufferSize,
      long maxSubscribers,
      boolean coordinatedEmission) {
    TestEnvironment environment() {
      return new TestEnvironment(expected, silence, poll);
    }
  }

  public static final class OfPublisher extends PublisherVerification<Object> {
    private final Hooks hooks;
    private final Settings settings;

    public OfPublisher(Hooks hooks, Settings settings) {
      super(settings.environment(), settings.references());
      this.hooks = hooks;
      this.settings = settings;
    }

    @Override
    public Publisher<Object> createPublisher(long elements) {
      return hooks.createPublisher(elements);
    }

    @Override
    public Publisher<Object> createFailedPublisher() {
      return hooks.createFailedPublisher();
    }

    @Override
    public long maxElementsFromPublisher() {
      return settings.maxElements();
    }

    @Override
    public long boundedDepthOfOnNextAndRequestRecursion() {
      return settings.boundedDepth();
    }

    @Override
    public boolean skipStochasticTests() {
      return settings.skipStochastic();
    }
  }

  public static final class OfBlackbox extends SubscriberBlackboxVerification<Object> {
    private final Hooks hooks;

    public OfBlackbox(Hooks hooks, Settings settings) {
      super(settings.environment());
      this.hooks = hooks;
    }

    @Override
    public Subscriber<Object> createSubscriber() {
      return hooks.createSubscriber();
    }

    @Override
    public void triggerRequest(Subscriber<? super Object> subscriber) {
      hooks.triggerRequest(subscriber);
    }

    @Override
    public Object createElement(int element) {
      return hooks.createElement(element);
    }
  }

  public static final class OfWhitebox extends SubscriberWhiteboxVerification<Object> {
    private final Hooks hooks;

    public OfWhitebox(Hooks hooks, Settings settings) {
      super(settings.environment());
      this.hooks = hooks;
    }

    @Override
    public Subscriber<Object> createSubscriber(WhiteboxSubscriberProbe<Object> probe) {
      return hooks.createWhiteboxSubscriber(probe);
    }

    @Override
    public Object createElement(int element) {
      return hooks.createElement(element);
    }
  }

  public static final class OfProcessor extends IdentityProcessorVerification<Object> {
    private final Hooks hooks;
    private final Settings settings;
    private final ExecutorService executor = Executors.newFixedThreadPool(4);

    public OfProcessor(Hooks hooks, Settings settings) {
      super(settings.environment(), settings.references(), settings.bufferSize());
      this.hooks = hooks;
      this.settings = settings;
    }

    @Override
    public Processor<Object, Object> createIdentityProcessor(int bufferSize) {
      return hooks.createIdentityProcessor(bufferSize);
    }

    @Override
    public Publisher<Object> createFailedPublisher() {
      return hooks.createFailedPublisher();
    }

    @Override
    public Object createElement(int element) {
      return hooks.createElement(element);
    }

    @Override
    public ExecutorService publisherExecutorService() {
      return executor;
    }

    public void shutdownPublisherExecutorService() {
      executor.shutdown();
    }

    @Override
    public long maxElementsFromPublisher() {
      return settings.maxElements();
    }

    @Override
    public long boundedDepthOfOnNextAndRequestRecursion() {
      return settings.boundedDepth();
    }

    @Override
    public boolean skipStochasticTests() {
      return settings.skipStochastic();
    }

    @Override
    public long maxSupportedSubscribers() {
      return settings.maxSubscribers();
    }

    @Override
    public boolean doesCoordinatedEmission() {
      return settings.coordinatedEmission();
    }
  }
}
