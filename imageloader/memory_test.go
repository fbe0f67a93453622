package imageloader

import "testing"

func TestSizeClass(t *testing.T) {
	last, lastSize := -1, 0
	for n := 0; n < 1<<20; n += 37 {
		class, size := sizeClass(n)
		if size < n || size > max(1024, n+n/4) {
			t.Fatalf("%d bytes: got size %d", n, size)
		}
		if again, same := sizeClass(size); again != class || same != size {
			t.Fatalf("size %d of class %d is of class %d, size %d", size, class, again, same)
		}
		if (class == last) != (size == lastSize) || class < last {
			t.Fatalf("%d bytes: class %d of size %d after class %d of size %d", n, class, size, last, lastSize)
		}
		last, lastSize = class, size
	}
	if class, _ := sizeClass(1 << 40); class >= len(memoryPool{}.sizes) {
		t.Errorf("class %d", class)
	}
}

func TestMemoryPool_Reuses(t *testing.T) {
	var m memoryPool
	reused := false
	for range 100 { // sync.Pool may forget
		a := m.take(5000)
		m.give(a)
		b := m.take(4900)
		reused = reused || &a[0] == &b[0]
	}
	if !reused {
		t.Error("memory that was given back is not taken again")
	}
}
