package archive

import "strings"

// verdict is a loader's judgement of a member.
type verdict struct {
	sample  bool   // the member has a place in the sequence
	label   int32  // label of a sample; -1 when its class is not known
	bad     *Error // the fault of a sample that is not usable
	ignored string // why the member is not an image
	class   string // of an image
	split   string // of an image: the directories above its class
	unsplit string // class of an image that has no split, if the options ask for a split
}

// judge returns the verdict on a member of s. It adds new classes to a vocabulary that is being
// collected. It fails for a sample whose class is not in a fixed vocabulary.
func (b *Indexer) judge(s *Shard, e Entry) (verdict, error) {
	o, classes := b.options, b.classes
	where, ignored, bad := s.Admit(e)
	inSplit := o.allSplits() || strings.HasPrefix(where.Above+"/", o.Split+"/")
	switch {
	case ignored != "":
		return verdict{ignored: ignored}, nil
	case bad != nil && where.Class == "" && where.Above != "" && !inSplit:
		return verdict{split: where.Above}, nil
	case bad != nil && where.Class == "": // if its split is not known, the image counts in every split
		return verdict{sample: true, label: -1, bad: bad}, nil
	case where.Class == "":
		return verdict{}, nil
	}
	v := verdict{class: where.Class, split: where.Above, sample: inSplit, bad: bad}
	if !o.allSplits() && where.Split == "" {
		return verdict{unsplit: where.Class}, nil // CLASS/FILE, but the options ask for SPLIT/CLASS/FILE
	}
	if !classes.fixed {
		v.label = classes.collect(where.Class)
		v.sample = v.sample && classes.keeps(where.Class)
		return v, nil
	}
	if v.sample {
		label, known := classes.find(where.Class, s.labels == LabelsFromMembers)
		if !known {
			return verdict{}, classes.unknown(s, e, where.Class)
		}
		v.label, v.sample = label, label >= 0
	}
	return v, nil
}
