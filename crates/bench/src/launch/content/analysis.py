"""A small analysis, as people start them all day: load the usual libraries, compute little, print a line."""
import numpy
import pandas
import scipy.interpolate
import scipy.optimize
import scipy.signal
import scipy.sparse
import scipy.stats

table = pandas.DataFrame({"x": numpy.arange(1000.0)})
table["y"] = numpy.sin(table.x / 50)
slope = scipy.stats.linregress(table.x, table.y).slope
root = scipy.optimize.brentq(lambda x: x * x - 2, 0, 2)
print(f"{slope:.9f} {root:.9f} {table.groupby(table.x // 100).y.mean().sum():.9f}")
