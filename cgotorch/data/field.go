package data

import (
	"fmt"
	"math"
	"slices"

	"github.com/streamtorch/streamtorch/cgotorch"
)

// Variable is the first dimension of a [Field] whose samples differ in length.
const Variable = -1

// Field describes one column of a data set: its name and one sample's elements.
type Field struct {
	Name  string
	DType cgotorch.DType // dtype of the elements. It is not used if Text is set

	// Shape is the shape of one sample. nil is a scalar. The first dimension may be [Variable]. The
	// loader then pads the samples of a batch to one length, see [Pad].
	Shape []int64

	// Text says that a sample is a text. No tensor holds texts. A Map turns them into numbers, or the
	// program reads them from the batch with [Column.Texts].
	Text bool

	// From names the columns of a file that make up this field, in order. The Shape is then
	// [len(From)] or has as many elements. nil means the column Name. Only readers of files use From.
	From []string

	// Classes are the texts of a column whose field holds numbers: the text Classes[i] becomes i. Any
	// other text is an error. DType is then one of integers, such as Int64. [ReadClasses] finds the
	// texts. nil means that the column holds numbers. Only CSV and JSONLines use Classes.
	Classes []string
}

// maxSample is the largest number of bytes of one sample in one field.
const maxSample = 1 << 30

func (f Field) variable() bool { return f.Text || len(f.Shape) > 0 && f.Shape[0] == Variable }

// unit returns the number of bytes of one sample. If the samples differ in length, it returns the
// bytes of one step of the first dimension.
func (f Field) unit() int {
	if f.Text {
		return 1
	}
	n := f.DType.Size()
	for i, d := range f.Shape {
		if i > 0 || d != Variable {
			n *= int(d)
		}
	}
	return n
}

func (f Field) String() string {
	switch {
	case f.Text:
		return fmt.Sprintf("%q text", f.Name)
	case len(f.Shape) == 0:
		return fmt.Sprintf("%q %v", f.Name, f.DType)
	}
	return fmt.Sprintf("%q %v%v", f.Name, f.DType, f.Shape)
}

func (f Field) equal(g Field) bool {
	return f.Name == g.Name && f.Text == g.Text && (f.Text || f.DType == g.DType && slices.Equal(f.Shape, g.Shape))
}

func (f Field) check() error {
	refuse := func(format string, args ...any) error {
		return fmt.Errorf("data: field %q: "+format+": %w", append(append([]any{f.Name}, args...), ErrInvalidOptions)...)
	}
	switch {
	case f.Name == "":
		return refuse("a field needs a name")
	case f.Text && f.Classes != nil:
		return refuse("Classes make a text a number, and Text is set; leave Text out")
	case f.Text && len(f.Shape) > 0:
		return refuse("a text has no shape, and Shape is %v", f.Shape)
	case f.Text:
		return nil
	case f.DType.Size() == 0:
		return refuse("%v is no dtype", f.DType)
	}
	if len(classesOf(f.Classes)) < len(f.Classes) {
		return refuse("a text is in Classes twice")
	}
	if n := len(f.Classes); n > 0 && !putInt(f.DType, make([]byte, f.DType.Size()), int64(n-1)) {
		return refuse("%v cannot hold the numbers of %d classes; use Int64", f.DType, n)
	}
	bytes := int64(f.DType.Size())
	for i, d := range f.Shape {
		if i == 0 && d == Variable {
			continue
		}
		if d < 1 || d > math.MaxInt32 || bytes > maxSample/d {
			return refuse("the shape %v is out of range; a sample has at most %d bytes", f.Shape, maxSample)
		}
		bytes *= d
	}
	return nil
}

// checkFields fails for a field that is not valid, for no field, and for two fields of one name.
func checkFields(fields []Field) error {
	if len(fields) == 0 {
		return fmt.Errorf("data: there are no fields: %w", ErrInvalidOptions)
	}
	for i, f := range fields {
		if err := f.check(); err != nil {
			return err
		}
		if fieldIndex(fields[:i], f.Name) >= 0 {
			return fmt.Errorf("data: two fields have the name %q: %w", f.Name, ErrInvalidOptions)
		}
	}
	return nil
}

func fieldIndex(fields []Field, name string) int {
	return slices.IndexFunc(fields, func(f Field) bool { return f.Name == name })
}
