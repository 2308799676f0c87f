package jvmtck;

/** Makes exceptions: those that JPype makes from Python carry no Java object. */
public final class Errors {
  private Errors() {}

  public static Throwable nullPointer(String message) {
    return new NullPointerException(message);
  }

  public static Throwable illegalArgument(String message) {
    return new IllegalArgumentException(message);
  }

  public static Throwable illegalState(String message) {
    return new IllegalStateException(message);
  }

  public static Throwable other(String message) {
    return new RuntimeException(message);
  }
}
