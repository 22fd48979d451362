"""FlyServe under load: more and more requests at once, against plain decoding of as many."""
