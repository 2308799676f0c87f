package jvmtck;

import org.reactivestreams.Publisher;
import org.reactivestreams.Subscriber;
import org.reactivestreams.Subscription;

/** A publisher as it is often written first: n, ..., 1. It breaks several rules; our kit says which. */
public final class Countdown implements Publisher<Object> {
  private final int start;

  public Countdown(int start) {
    this.start = start;
  }

  @Override
  public void subscribe(Subscriber<? super Object> subscriber) {
    subscriber.onSubscribe(
        new Subscription() {
          private int left = start;
          private boolean cancelled;

          @Override
          public void request(long n) {
            for (long i = 0; i < n && left > 0 && !cancelled; i++) {
              subscriber.onNext(left--);
            }
            if (left == 0 && !cancelled) {
              subscriber.onComplete();
            }
          }

          @Override
          public void cancel() {
            cancelled = true;
          }
        });
  }
}
