package apply

import (
	"testing"
)

func TestSmallTransactions(t *testing.T) {
	bothForms(t, func(t *testing.T, binary bool) {
		p := newPair(t, binary, `CREATE TABLE a (id int PRIMARY KEY, v text, n numeric(10,2), at timestamptz);
			CREATE TABLE b (x text, y bigint, z int[], PRIMARY KEY (y, x))`)
		s := p.open(t)
		write(t, s, p.change(t, `
			INSERT INTO a SELECT g, 'v' || g, g * 1.5, '2024-01-01'::timestamptz + g * interval '1 hour' FROM generate_series(1, 100) g;
			INSERT INTO b SELECT 'k' || g, g, ARRAY[g, NULL, 2] FROM generate_series(1, 50) g;
			UPDATE a SET v = E'quo"te\\d,\t{}()\n' WHERE id % 3 = 0;
			BEGIN; DELETE FROM a WHERE id % 10 = 0; INSERT INTO a VALUES (10, NULL, 'NaN', 'infinity'); UPDATE b SET z = '{{1,2},{3,4}}' WHERE y < 10; COMMIT;
			UPDATE a SET id = id + 1000 WHERE id < 6;
			DELETE FROM b WHERE y = 5;
		`))
		p.same(t)
		st := s.Stats()
		if st.Transactions != 6 || st.FallbackTransactions != 0 || st.RowRows != 0 {
			t.Errorf("%+v", st)
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		p.released(t)
	})
}
