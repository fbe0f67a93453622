package archive

import (
	"strings"
	"testing"
)

func TestSplitOf(t *testing.T) {
	for split, names := range map[string]string{
		"train": "train Train TRAIN training train2017 train-000.tar train_set trainset images_train trn", "test": "test tests.test test-A testing test.tgz testset", "val": "val val2017 valid validation dev",
		"eval": "eval evaluation holdout", "": "a contest latest trains strain device valley develop evaluate data 000",
	} {
		for _, name := range strings.Fields(names) {
			if got := splitOf(name); got != split {
				t.Errorf("%s: got %q, want %q", name, got, split)
			}
		}
	}
}
