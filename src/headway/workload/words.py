"""Common words to make prompts of: most are a single token in any model's vocabulary."""

from __future__ import annotations

from headway.workload.tokens import Count

_TEXT = """
able above accept across action active actor actual address advice affect afford after again against agree ahead air
alive allow almost alone along already also always among amount ancient angle animal answer apple apply area arm
army around arrive art article ask attempt average avoid award away baby back bad balance ball band bank base basic
battle beach bear beat beautiful become before begin behind believe below benefit best better between beyond big
bill bird birth black block blood blue board boat body book border born both bottom box boy branch bread break
bridge bright bring broad broken brother brown budget build burn business busy buy call calm camera camp capital
captain car card care carry case castle cat catch cause cell center central century certain chain chair chance
change chapter charge cheap check chief child choice choose church circle citizen city claim class clean clear close
cloud coast coat code coffee cold collect college color column come common company complete concern condition
connect consider contact contain content context control cook cool copy corner correct cost cotton count country
couple courage course court cover create credit cross crowd culture current custom cut daily damage dance danger
dark data daughter day dead deal death debate decide deep defense degree deliver demand depend describe desert
design desk detail develop difference difficult dinner direct discover discuss disease distance divide doctor dog
door double doubt down draw dream dress drink drive drop dry due during dust duty each early earn earth east easy
eat edge education effect effort egg eight either electric element else empty enemy energy engine enjoy enough enter
entire equal error escape even evening event ever every evidence exact example except exchange exist expect
experience explain express extra eye face fact fail fair fall false family famous far farm fast father favor fear
feature feed feel female few field fight figure file fill film final find fine finger finish fire firm first fish
five fix flat flight floor flow flower fly focus follow food foot force foreign forest forget form forward four
frame free fresh friend front fruit fuel full function fund future gain game garden gas gate gather general gentle
gift girl give glass goal gold good grand grass gray great green ground group grow growth guard guess guest guide
habit hair half hall hand happen happy hard hat have head health hear heart heat heavy help here hero hide high hill
history hit hold hole holiday home honest honor hope horse hospital hot hotel hour house human hundred hunt hurry
husband ice idea image impact important inch include increase index industry inside instead interest invite iron
island issue item job join joint judge jump just keep key kind king kitchen knee knock know labor lack lady lake
land language large last late laugh law lay lead leaf learn least leave left leg lesson letter level library lie
life lift light like limit line link lip list listen little live local lock long look lose loss loud love low luck
lunch machine main major make male manage manner many map mark market marry mass master match matter maybe meal mean
measure meat media medical meet member memory mention message metal method middle might mile milk million mind
minute mirror miss mix model modern moment money month moon moral more morning most mother motion motor mountain
mouse mouth move much music must name narrow nation nature near neck need neighbor neither network never new news
next night nine noise none normal north nose note nothing notice now number object ocean off offer office often oil
old once one only open operate opinion option orange order other outside over own page pain paint pair palace paper
parent park part party pass past path pattern pay peace people perfect perhaps period person phone photo phrase
piece pink place plain plan plane planet plant plate play please plenty pocket point police poor popular position
possible post pound power practice prepare present press pretty prevent price pride primary print private prize
problem process produce program project promise proof proper protect proud prove provide public pull pure purpose
push put quality quarter queen question quick quiet quite race radio rain raise range rare rate rather reach read
ready real reason receive recent record red reduce region relate remain remember remove repeat reply report request
require rest result return rice rich ride right ring rise risk river road rock role roll roof room root rope rough
round route row royal rule run safe sail salt same sand save scale scene school science score sea search season seat
second secret section see seed seek seem select sell send sense separate serious serve service set seven several
shade shake shape share sharp sheet shell shine ship shirt shoe shoot shop short should shoulder show shut side
sight sign signal silent silver similar simple since sing single sister sit six size skill skin sky sleep slow small
smart smell smile smoke smooth snow soap social soft soil soldier solid solution solve some son song soon sort sound
source south space speak special speech speed spell spend spirit sport spread spring square staff stage stair stand
standard star start state station stay steady steel step stick still stock stone stop store storm story straight
strange stream street strength strong structure student study style subject success such sudden sugar suit summer
sun supply support sure surface surprise sweet swim system table take talk tall task taste teach team tell ten term
test text than thank theory thick thin thing think third thought thousand thread three through throw ticket tie time
tiny tired title together tomorrow tone tool tooth top total touch tour toward tower town track trade train travel
tree trial trip trouble truck true trust truth try turn twelve twenty twice type uncle under union unit until upper
use usual valley value various vast very view village visit voice vote wait walk wall want warm wash waste watch
water wave way weak wealth wear weather week weight welcome well west wheel when where whether which while white
whole wide wife wild will win wind window wine wing winter wire wise wish with within without woman wonder wood word
work world worry worth would write wrong year yellow yes yet young zero
"""
WORDS = tuple(_TEXT.split())
_FEWEST = 64
_ENOUGH = 512
_ANCHORS = 16  # a small vocabulary lacks many of our words
_VARIED = 128  # where it does, so many are looked for: each costs a count


def single_token_words(count: Count) -> tuple[str, ...]:
    """Some of `WORDS` that are one token each, wherever they stand: a text of n of them has n tokens. Empty when the
    tokenizer has too few of them to make texts of, e.g. one of bytes. Asks for some hundred counts of short texts.
    """
    found_anchor = next(filter(None, (_anchored(word, count) for word in WORDS[:: len(WORDS) // _ANCHORS])), None)
    if found_anchor is None:
        return ()
    anchor, one, two = found_anchor
    if count(" ".join([anchor, *WORDS])) - one == len(WORDS):
        some = (WORDS[place * len(WORDS) // _ENOUGH] for place in range(_ENOUGH))
        found = [word for word in some if count(f"{word} {anchor}") == two]  # at the beginning, without its space
    else:
        found = _paired(count, two)
    return tuple(found) if len(found) >= _FEWEST else ()


def _paired(count: Count, two: int) -> list[str]:
    """Enough of the words that are a token each at the beginning and behind another, in a vocabulary that lacks some: a
    tokenizer may be at the end of a network.
    """
    found: list[str] = []
    for word in WORDS:
        if count(f"{word} {word}") == two:
            found.append(word)
            if len(found) == _VARIED:
                break
    return found


def _anchored(word: str, count: Count) -> tuple[str, int, int] | None:
    """A word that is one token behind itself, and the tokens of it and of two of it."""
    one, two = count(word), count(f"{word} {word}")
    return (word, one, two) if two - one == 1 else None
